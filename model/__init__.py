"""The residual biLM and the ELMo layer: words become losses, states and representations.

Rooms from top to bottom: inference, formats, then the modules that compute. Each may import those
below it, torch, and `pipeline`. None may import jobs/, Ray or MLflow.
"""
