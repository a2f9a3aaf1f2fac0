"""The fused LM head and its plain counterpart. Imports nothing until a name is used."""
