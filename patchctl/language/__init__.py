"""Messages in the user's language. English is the text itself; zh_CN.po has the Chinese. Imports nothing of patchctl."""
