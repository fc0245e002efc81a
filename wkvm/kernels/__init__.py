"""Functions on tensors: plain-torch references and the Triton kernels that match them."""
