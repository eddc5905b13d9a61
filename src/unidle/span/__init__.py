"""Training across data centres: models of links, plans and their proofs. Pure: no clock, chance, file or socket."""
