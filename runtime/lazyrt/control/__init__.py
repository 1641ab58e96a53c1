"""What users steer: steps, and the barriers that follow by themselves."""
