"""``wkvm bench report``: Markdown and plots from JSON lines of results.

What is shown together is a ``Section``; ``registry`` says which there are, and in which order.
Nothing here needs matplotlib until a plot is drawn.
"""
