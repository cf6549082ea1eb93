"""Steps of layouts that nobody ran, predicted from kept runs."""
