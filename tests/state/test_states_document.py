"""What the page on states says of mutations is what there is."""

import re
from pathlib import Path

from wkvm.state.operations import BUILTIN, Operation, Parameters

PAGE = (Path(__file__).parents[2] / "docs/states.md").read_text(encoding="utf-8")


def test_every_operation_is_in_the_table_with_its_parameters_and_parents() -> None:
    for one in BUILTIN:
        row = re.search(rf"^\| `{one.name}` \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
        assert row is not None, one.name
        parents = sorted({one.min_parents, one.max_parents})
        assert row[1] == " to ".join(map(str, parents))
        own = set(one.parameters.__struct_fields__) - set(Parameters.__struct_fields__)
        assert own <= set(re.findall(r"`(\w+)`", row[2])), one.name


def test_the_example_of_a_plugin_is_an_operation() -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    names: dict[str, object] = {"__name__": "my_package"}
    exec(compile(example[1], "docs/states.md", "exec"), names)
    assert isinstance(names["operation"], Operation)
