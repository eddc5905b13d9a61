"""Who runs where: pure placement policies. ``protocol`` is the page to begin with, ``scheduler`` the decision."""
