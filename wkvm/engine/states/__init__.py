"""Durable states of an engine: requests that start from them and end in them, and operations."""

from wkvm.engine.states.service import StateService

__all__ = ["StateService"]
