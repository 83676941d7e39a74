"""CPU reference engine: a speculative-decoding server for Llama-architecture models in numpy.

It serves the same HTTP API as SGLang and is the fp32 oracle that GPU work is compared with.
"""

__version__ = "0.1.0"
