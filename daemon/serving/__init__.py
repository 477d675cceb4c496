"""The one way of a generation request through the daemon, whichever protocol it came by."""
