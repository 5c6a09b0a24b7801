"""The verbs that start runs or concern them, one file each."""
