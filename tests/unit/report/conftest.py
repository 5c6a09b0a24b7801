from cli_support import undrawn

__all__ = ["undrawn"]
