"""The commands: options, the wiring of a run, printing and run folders. Only the entry points import this package."""
