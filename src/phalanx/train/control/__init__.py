"""What all workers have to decide alike: rendezvous, commands, shares."""
