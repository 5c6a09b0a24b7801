"""Vocabulary without behaviour: errors, registries, specs, settings, the names of files."""
