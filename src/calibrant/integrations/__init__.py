"""Thin bridges to other libraries, each a module to import by name.

- ``calibrant.integrations.scikit_learn``: scorers, ``ReliabilityDisplay``, predictions of a
  fitted classifier.
- ``calibrant.integrations.lightning``: ``CalibrationCallback`` (extra ``lightning``).
- ``calibrant.integrations.hugging_face``: ``CalibrationCallback`` and ``compute_metrics`` of a
  ``Trainer``, a block of a model card (extra ``huggingface``).
- ``calibrant.integrations.mlflow``, ``calibrant.integrations.tensorboard``: ``log_evaluation``
  (extras ``mlflow``, ``tensorboard``).
"""
