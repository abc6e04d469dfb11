"""A model as files: our folder with safetensors, and the published bilm format.

`folder.py: load_folder` hands on a `LoadedModel` from any of them. Names, shapes and values are
checked, and nothing is unpickled. May import the modules of model/, `pipeline` and torch.
"""
