"""How some questions begin: the model goes on from there, and so asks about more than it would by itself."""

from __future__ import annotations

OPENINGS = (
    *("Translate this German sentence into English:", "Translate from German to English:\n"),
    *("Put this French sentence into English:", "What does this Spanish sentence mean in English?\n"),
    *("How do you say in French", "Translate into German:\n", "Write in Spanish:"),
    *(
        "Write a Python function that",
        "Write a function in JavaScript",
        "Fix the bug in this code:\n",
        "What does this",
    ),
    *("Complete this Python function:\n\ndef ", "Write an SQL query", "Explain this code:\n\n"),
    *("Solve:", "If a train", "A shop sells", "How many", "What is the sum of", "Calculate", "Prove that", "Anna has"),
    *("Summarize this article:\n\n", "Give the main points of this text:\n\n", "Read this report and sum it up:\n\n"),
    *("Who was", "When did", "Where is", "Which", "Why do", "What is the difference between", "Name three"),
    *("Write a story about", "Write a poem about", "Write an email to", "Write a blog post", "Describe"),
    *("You are", "Pretend to be", "Imagine that", "Act as", "Let us play"),
    *("Extract", "List all", "Put the following into a table:\n", "Classify", "Which of these"),
    *("Explain how", "Explain why", "How does", "What would happen if", "Compare", "What are the advantages of"),
    *("Correct the grammar:\n", "Rewrite this sentence", "Make this text shorter:\n\n", "Give me ideas for"),
)

LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")

INTO = (
    "Translate into {language}:\n{text}",
    "How would you say this in {language}? {text}",
    "{language}, please: {text}",
)
"""Requests to translate an English sentence; their answers are then asked about with `BACK`."""

BACK = (
    "Translate from {language} to English: {text}",
    "Put this {language} text into English.\n\n{text}",
    "{text}\n\nWhat does this mean in English?",
)

ABOUT_TEXT = (
    "Summarize this text:\n\n{text}",
    "{text}\n\nSum this up in three sentences.",
    "What are the main points of the following?\n\n{text}",
    "Correct the spelling of this text and repeat it:\n\n{text}",
    "Rewrite this in simpler words:\n\n{text}",
    "Make a list of the most important facts.\n\n{text}",
    "{text}\n\nTL;DR:",
)

ABOUT_PASSAGES = (
    "Here are some passages.\n\n{text}\n\nUse them to answer: {question}",
    "{question}\n\nAnswer from these notes only:\n\n{text}",
    "Read the documents and reply to the question.\n\n{text}\n\nQuestion: {question}\nAnswer:",
)
