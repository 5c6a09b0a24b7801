"""How workers agree on the next parameters: one strategy per file, behind ``Strategy``.

May use every other room of ``sync``; only ``train`` uses strategies.
"""
