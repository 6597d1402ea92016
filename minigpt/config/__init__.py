"""Settings: their schema, where values come from, presets, YAML."""
