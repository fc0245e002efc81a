"""What decoders are made of: mixers, feed-forward layers, and how they are joined.

A part holds its weights and which of the state's layers are its own. It is called with the packed
tokens ``[T, C]`` and the step, and runs alike on a CPU and on a GPU, where a graph can capture it.
"""
