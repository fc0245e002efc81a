"""The interface of SGLang's server, as far as it is another one than OpenAI's."""
