"""From settings to the durable states of an engine. Imports torch, so import this late."""

import logging
import os
import time

import wkvm
from wkvm.assembly.memory_folder import MemoryFolder
from wkvm.core.layout import MAX_SLOT_PAGES, PAGE_TOKENS
from wkvm.core.rates import Rate
from wkvm.core.registry import Identity
from wkvm.core.state_config import StateConfig
from wkvm.engine.engine import Engine
from wkvm.engine.states import StateService
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.threads import Threads
from wkvm.models.ring import fold_vectors
from wkvm.state.exchange import MAX_TOKENS
from wkvm.state.folding import Fold, fold_with
from wkvm.state.io import IO, SystemIO
from wkvm.state.mutations import Mutations
from wkvm.state.objects import open_objects
from wkvm.state.opening import check_folder
from wkvm.state.store import Store

logger = logging.getLogger("wkvm.assembly")


def check_states(config: StateConfig) -> None:
    """Check that a store can be opened where it is to be, before a model is loaded for it.

    Raises:
        BadStoreError: its folder is none that may be used.
        StoreLockedError: another process has it open.
    """
    if config.folder is not None:
        check_folder(SystemIO(), config.folder)


class OpenStates:
    """A store that is open, for one engine, before there is a loop.

    Where states are kept in memory, its catalogue is in a temporary folder, and so is what of
    them host memory has no room for.

    Args:
        io: the file system that payloads are on; None takes the operating system's.

    Raises:
        StoreError, ConfigError, MissingExtraError: it cannot be opened.
    """

    def __init__(self, engine: Engine, config: StateConfig, io: IO | None = None) -> None:
        self._engine = engine
        self._config = config
        self._temporary: MemoryFolder | None = None
        folder = config.folder
        if folder is None:
            self._temporary = MemoryFolder()
            folder = os.path.join(self._temporary.path, "store")
        version = wkvm.__version__
        objects = None if config.cold is None else open_objects(config.cold)
        try:
            self._store = Store.open(
                folder,
                clock=time.time,
                io=io,
                limits=config.limits,
                objects=objects,
                engine=version,
                pinned=engine.model.info.device == "cuda",
            )
        except BaseException:
            self._cleanup()
            raise
        self._mutations = Mutations.installed()
        for name, why in self._mutations.broken.items():
            logger.warning("the mutation %s cannot be used: %s", name, why)

    def serve(self, loop: StepLoop) -> StateService:
        """The states, on the loop that turns the engine. Once; ``close`` of it closes the store."""
        info = loop.info
        backing = Backing(
            store=self._store,
            identity=Identity(
                model_digest=info.model_digest,
                fingerprint=info.layout_fingerprint,
                tokenizer_digest=info.tokenizer_digest,
            ),
            layout=loop.layout,
            vocab_size=info.vocab_size,
            max_tokens=_max_tokens(info.n_pages),
            threads=Threads(),
            mutations=self._mutations,
            fold=_fold(self._engine),
            clock=time.monotonic,
            engine=wkvm.__version__,
            forks=Rate(self._config.forks_per_s, "forks"),
            has_disk=self._config.folder is not None,
            has_cold=self._config.cold is not None,
            used={},
            moved={},
        )
        return StateService(loop, backing, idle_s=self._config.idle_s, closed=self._cleanup)

    def _cleanup(self) -> None:
        if self._temporary is not None:
            self._temporary.close()


def _max_tokens(n_pages: int) -> int:
    """How many tokens a state may have that can run here.

    Args:
        n_pages: of the guest pool; 0 without one.
    """
    return min(n_pages, MAX_SLOT_PAGES) * PAGE_TOKENS if n_pages else MAX_TOKENS


def _fold(engine: Engine) -> Fold | None:
    vectors = fold_vectors(engine.model)
    return None if vectors is None else fold_with(vectors)
