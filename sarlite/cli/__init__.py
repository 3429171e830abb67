"""The commands: options, the wiring of a run, printing and run folders. Nothing below imports this package."""
