"""From a model's path to a running engine, and to something that talks to it.

What the command line and ``wkvm.LLM`` share: finding a model, sizing and building its
engine, and a client of an engine in this process or of a server elsewhere.
"""
