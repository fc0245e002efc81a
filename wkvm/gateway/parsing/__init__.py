"""What is in the text of an answer: reasoning, text and tool calls, as the text comes.

What is found does not depend on how the text was cut, so that a streamed answer is the one that
would not have been streamed.
"""
