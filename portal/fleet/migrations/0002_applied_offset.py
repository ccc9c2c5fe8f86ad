from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_first")]

    operations = [
        migrations.RenameField("node", "sample_offset_ms", "applied_offset_ms"),
    ]
