"""Files of sounds, images and video, read as arrays. The packages that decode them are optional and imported on use."""
