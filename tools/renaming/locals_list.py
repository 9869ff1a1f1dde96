def show(root):
    pass
