"""wkvm: a hypervisor for model state.

An inference engine for recurrent language models in which the object that is
allocated, scheduled, named, stored and moved is a fixed-size state.
"""

__version__ = "0.1.0.dev0"
