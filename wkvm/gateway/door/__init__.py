"""How requests come in: connections, keys, origins, and what each key may ask for."""
