"""The controller's connection to the agent of one machine: what is asked, answered, waited for."""
