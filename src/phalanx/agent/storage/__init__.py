"""Files on the machine: what was sent to it (blobs, folders, environments), what goes back."""
