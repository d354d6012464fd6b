"""Worker processes: started here or on other nodes, driven by messages, ended with all that they started."""
