"""The user's script, looked at before anything is started."""
