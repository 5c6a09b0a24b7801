from cli_support import shell

__all__ = ["shell"]
