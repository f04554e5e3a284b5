"""The figures of a report, as data for plotly's script: plain dictionaries, one module a kind."""
