"""wkvm beside other programs that run the same weights on a CPU, or the same shapes on a GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wkvm_bench.report.records import Record
from wkvm_bench.report.sections import Plot, Section, of_bench
from wkvm_bench.report.tables import compared, in_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def in_order(records: Sequence[Record]) -> str:
    """Rows by what is done, and then by the peer."""
    return compared(sorted(records, key=lambda one: in_numbers(str(one["case"]))))


def draw_ratios(figure: "Figure", records: Sequence[Record]) -> None:
    """A point for each ratio, with its spread, and a line at one."""
    records = sorted(records, key=lambda one: str(one["case"]), reverse=True)
    axes = figure.subplots()
    names = [str(record["case"]) for record in records]
    ratios = [record["ratio"] for record in records]
    middle = [ratio["median"] for ratio in ratios]
    spread = [
        [max(ratio["median"] - ratio["p10"], 0.0) for ratio in ratios],
        [max(ratio["p90"] - ratio["median"], 0.0) for ratio in ratios],
    ]
    axes.errorbar(middle, names, xerr=spread, fmt="o", ecolor="#8c959f", capsize=3)
    axes.axvline(1.0, color="#57606a", linewidth=1.0)
    axes.set_xscale("log")
    axes.set_xlabel("wkvm's rate over the peer's")
    ticks = [tick for tick in TICKS if min(middle) / 2 < tick < max(middle) * 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


SECTIONS = (
    Section(
        name="peers",
        title="The same weights in other programs, on a CPU",
        text="""The bundled model, and one of 0.2B with random weights, beside llama.cpp (through
`llama-cpp-python`, compiled for the processor, on GGUF files made of the same weights: large
matrices in float16, as wkvm keeps them on a CPU, and all in float32; it rounds what it multiplies
with float16 to float16 as well, which wkvm does not), transformers (with the model
of `rwkv7-hf`) and the package `rwkv`, both in float32. States and sums are in float32 everywhere.
All have as many threads, choose greedily, and gave the same ids before anything was timed. wkvm's
side is whole steps of its engine, with scheduler and sampler; a peer's is its forward pass and the
argmax. Above 1, wkvm is the faster one.""",
        has=of_bench("peers"),
        tables=in_order,
        plots=(
            Plot(
                name="peers",
                title="wkvm's rate over that of other programs on the same weights and CPU.",
                has=of_bench("peers"),
                draw=draw_ratios,
                size=(8.0, 4.4),
            ),
        ),
    ),
    Section(
        name="gpu-peers",
        title="Others on the same GPU",
        text="""Servers of wkvm and of vLLM on one GPU, the same loads by turns over the same HTTP
interface: random prompts of token ids, outputs of one length, greedy. Weights are random. Where
both run the architecture it is one shape; else wkvm runs RWKV-7, and vLLM a transformer of that
size. Rates above 1, and times below 1, are wkvm's advantage. vLLM runs compiled and captured, with
FlashAttention 3 and without FlashInfer, so that prompts of Gated DeltaNet take its Triton kernel;
its prefix cache is off. All requests of a load come at once: beside rows that decode, wkvm gives
prompts [448 tokens of a step](cli.md#wkvm-serve), vLLM 8,192. That is less added to the time
between ids, and of many long prompts a later first id. Both had six cores to themselves, on a
machine whose others were busy. Where there are lines of fla's own RWKV-7, it is run in the same
process as wkvm's engine, step by step with its cache.""",
        has=of_bench("vllm", "fla"),
        tables=in_order,
    ),
)
