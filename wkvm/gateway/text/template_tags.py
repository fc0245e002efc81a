"""Tags of Hugging Face's chat templates that Jinja does not have."""

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser


class Generation(jinja2.ext.Extension):
    """``generation`` and ``endgeneration``: what is between them is written as it is.

    Templates mark with them what a model is trained on.
    """

    def __init__(self, environment: jinja2.Environment) -> None:
        """Be of an environment."""
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """What is between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
