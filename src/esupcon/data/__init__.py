"""From files to a training batch: datasets, settings, augmentation."""
