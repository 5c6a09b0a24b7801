"""The figures of a report, drawn without a display."""
