def print_prediction():
    pass
