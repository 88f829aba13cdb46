"""Commands with a module of their own; `playproof.cli` puts them beside the others."""
