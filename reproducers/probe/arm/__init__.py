"""The probe of the runner's arms, none of it part of an exported file."""
