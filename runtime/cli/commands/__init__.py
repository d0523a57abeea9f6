"""What each command is called, takes and says of itself.

Nothing here imports torch or another library that takes long to start, so that help, completion and wrong usage are answered
at once; what a command does is imported when it is called, from the modules beside this folder.
"""
