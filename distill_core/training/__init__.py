"""The pieces of training, one file each; `trainer.run_training` puts them together in the order in which they happen.

arguments        our config as transformers' TrainingArguments
distill_trainer  transformers.Trainer with the fused loss
terms            what may be added to the loss
watch            what happens around the steps: metrics, looks at the held-out text, the end
checkpoints      where a killed run goes on
model_folder     the student's best weights, whole at any time
"""
