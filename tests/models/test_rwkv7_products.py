"""The products of prompts on a GPU: near float64, and with bits of their own if deterministic."""

import pytest
import torch
from torch import Tensor

from tests.models.test_rwkv7_decode import unquantised
from tests.models.tiny_rwkv7 import Tiny, random_weights, write_pth
from wkvm.models.rwkv7_params import load_parameters, read_shape
from wkvm.models.weights import open_checkpoint

pytestmark = pytest.mark.gpu

TOKENS = (1, 2, 63, 64, 130, 513, 1100)


@pytest.mark.parametrize("quantization", ["none", "fp8", "int8"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_products_meet_float64_and_a_deterministic_tokens_bits_are_its_own(
    tmp_path_factory: pytest.TempPathFactory, quantization: str, deterministic: bool
) -> None:
    from wkvm.models.rwkv7_packed import Rwkv7Decode
    from wkvm.models.rwkv7_products import Products

    tiny = Tiny(width=192, ffn_width=160, vocab_size=300)
    path = write_pth(tmp_path_factory.mktemp("model") / "tiny.pth", random_weights(tiny))
    checkpoint = open_checkpoint(path)
    shape = read_shape(checkpoint)
    parameters = {
        name: tensor.to("cuda", torch.bfloat16).contiguous()
        for name, tensor in load_parameters(checkpoint, shape)
    }
    model = Rwkv7Decode(shape, parameters, quantization=quantization, deterministic=deterministic)
    products, layer = Products(model), model.layers[1]
    held = {name: t.double() for name, t in unquantised(parameters, quantization).items()}
    C, V = shape.width, shape.vocab_size
    draw = torch.Generator("cuda").manual_seed(0)
    found = dict[str, Tensor]()

    def normal(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*size, generator=draw, device="cuda").to(dtype)

    subject, before = normal(C), normal(C, dtype=torch.float32)
    for n in TOKENS:
        mixed, x = normal(3, n, C), normal(n, C, dtype=torch.float32)
        mixed[:, n // 2], x[n // 2] = subject, before
        rkv = torch.full((3, n, C), float("nan"), device="cuda", dtype=torch.bfloat16)
        logits = torch.full((n, V), float("nan"), device="cuda")
        expected = {
            "rkv": torch.stack(
                [
                    mixed[i].double() @ held[f"blocks.1.att.{name}.weight"].t()
                    for i, name in enumerate(("receptance", "key", "value"))
                ]
            ),
            "added": x + mixed[0].double() @ held["blocks.1.att.output.weight"].t(),
            "logits": mixed[0].double() @ held["head.weight"].t(),
        }
        products.rkv(mixed, layer.first, rkv)
        products.add(x, mixed[0], layer.output)
        products.logits(mixed[0], logits)
        for name, value in {"rkv": rkv, "added": x, "logits": logits}.items():
            error = (value - expected[name]).norm() / expected[name].norm()
            assert error < 5e-3, (name, n)
            bits = value[..., n // 2, :].clone()
            if deterministic:
                assert torch.equal(found.setdefault(name, bits), bits), (name, n)
