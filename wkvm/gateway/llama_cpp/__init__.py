"""The interface of llama.cpp's server, as far as it is another one than OpenAI's."""
