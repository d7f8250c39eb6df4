"""ScaleFold: from raw protein data to trained AlphaFold2-class weights.

The sub-packages follow the way the data goes: ``raw`` -> ``shards`` -> ``loader`` -> ``features``
-> ``model`` -> ``loss`` -> ``train`` -> ``evaluate`` -> ``report``.
"""

__version__ = "0.1.0"
