"""The engine: plans, runs and commits steps over one model and one arena."""
